"""The credit functions, example by example and by property."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from made_up import make_samples

from clawrl_trl.credit import TrainingSample, accepted_prefix, binary, combine, opd

scores = st.floats(-1, 1)
gaps = hnp.arrays(np.float64, st.integers(1, 8), elements=st.floats(-50, 0) | st.just(np.nan))


class TestBinary:
    def test_a_group_of_one_keeps_its_raw_score(self) -> None:
        advantages, constant = binary([1.0, -1.0, 0.5], [None, "a", "b"])
        assert advantages.tolist() == [1.0, -1.0, 0.5]
        assert not constant.any()

    def test_groups_are_normalised_with_the_sample_deviation(self) -> None:
        advantages, _ = binary([1.0, -1.0, 7.0], ["a", "a", None])
        np.testing.assert_allclose(advantages, [1 / (2**0.5 + 1e-6), -1 / (2**0.5 + 1e-6), 7.0])

    def test_constant_groups_are_flagged(self) -> None:
        advantages, constant = binary([1.0, 1.0, 1.0], ["a", "a", None])
        assert advantages.tolist() == [0.0, 0.0, 1.0]
        assert constant.tolist() == [True, True, False]

    def test_an_unscored_member_is_left_out(self) -> None:
        advantages, constant = binary([1.0, None], ["a", "a"])
        assert advantages[0] == 1.0 and np.isnan(advantages[1])
        assert not constant.any()

    @given(st.lists(scores, min_size=1, max_size=12))
    def test_without_groups_nothing_changes(self, values: list[float]) -> None:
        np.testing.assert_array_equal(binary(values)[0], values)

    @given(st.lists(st.tuples(scores, st.sampled_from("abc")), min_size=2, max_size=20))
    def test_groups_have_mean_zero_and_keep_their_order(self, rows: list[tuple[float, str]]) -> None:
        values, groups = [row[0] for row in rows], [row[1] for row in rows]
        advantages, constant = binary(values, groups)
        for key in set(groups):
            indices = [i for i, group in enumerate(groups) if group == key]
            if len(indices) == 1:
                assert advantages[indices[0]] == values[indices[0]]
                continue
            assert abs(advantages[indices].sum()) < 1e-6
            assert np.abs(advantages[indices]).max() <= len(indices) ** 0.5
            assert all(
                advantages[i] <= advantages[j] + 1e-12 for i in indices for j in indices if values[i] <= values[j]
            )
            assert constant[indices].all() == (len({values[i] for i in indices}) == 1)


class TestOPD:
    def test_an_absent_side_is_an_absent_term(self) -> None:
        assert opd(None, np.zeros(3), 1.0) is None
        assert opd(np.zeros(3), None, 1.0) is None

    @given(gaps, st.floats(0.1, 5), st.randoms())
    def test_bounded_signed_and_never_zero_filled(self, teacher: np.ndarray, clip: float, random: object) -> None:
        student = np.roll(np.nan_to_num(teacher, nan=-1.0), 1)
        gap = opd(teacher, student, clip)
        assert gap is not None
        known = np.isfinite(teacher)
        assert np.isnan(gap[~known]).all()
        np.testing.assert_allclose(gap[known], np.clip(teacher - student, -clip, clip)[known])

    def test_lengths_must_fit(self) -> None:
        with pytest.raises(ValueError, match="shape"):
            opd(np.zeros(2), np.zeros(3), 1.0)
        with pytest.raises(ValueError, match="above 0"):
            opd(np.zeros(2), np.zeros(2), 0.0)


class TestAcceptedPrefix:
    def test_it_falls_where_the_teacher_would_not_have_written_on(self) -> None:
        teacher, student = np.array([-1.0, -3.0, np.nan, -1.0, 0.0]), np.array([-1.0, -1.0, -5.0, -2.0, -9.0])
        np.testing.assert_allclose(accepted_prefix(teacher, student, 5), np.exp([0.0, 0.0, -2.0, -2.0, -2.0]))

    @pytest.mark.parametrize("absent", [(None, np.zeros(2)), (np.zeros(2), None)])
    def test_without_a_teacher_everything_counts(self, absent: tuple[object, object]) -> None:
        np.testing.assert_array_equal(accepted_prefix(*absent, 2), [1.0, 1.0])  # type: ignore[arg-type]

    @given(gaps)
    def test_a_probability_that_never_rises(self, teacher: np.ndarray) -> None:
        shares = accepted_prefix(teacher, np.roll(np.nan_to_num(teacher, nan=-1.0), 1), len(teacher))
        assert shares[0] == 1.0 and (shares >= 0).all() and (np.diff(shares) <= 0).all()


class TestCombine:
    def test_either_term_may_be_absent(self) -> None:
        gap = np.array([0.5, np.nan])
        np.testing.assert_allclose(combine(1.0, gap, w_rl=2.0, w_opd=4.0, length=2), [4.0, 2.0])
        np.testing.assert_allclose(combine(None, gap, w_rl=2.0, w_opd=4.0, length=2), [2.0, np.nan])
        np.testing.assert_allclose(combine(-1.0, None, w_rl=2.0, w_opd=4.0, length=2), [-2.0, -2.0])
        assert np.isnan(combine(None, None, w_rl=1.0, w_opd=1.0, length=2)).all()
        assert np.isnan(combine(1.0, None, w_rl=0.0, w_opd=1.0, length=2)).all()

    @given(scores, gaps, st.floats(0.1, 3), st.floats(0.1, 3))
    def test_linear(self, score: float, gap: np.ndarray, w_rl: float, w_opd: float) -> None:
        advantages = combine(score, gap, w_rl=w_rl, w_opd=w_opd, length=len(gap))
        np.testing.assert_allclose(advantages, w_rl * score + w_opd * np.nan_to_num(gap))
        assert np.isfinite(advantages).all()


class TestTrainingSample:
    def test_arrays_must_line_up(self) -> None:
        with pytest.raises(ValueError, match="logprobs"):
            TrainingSample(prompt_ids=[1], completion_ids=[1, 2], logprobs=[-1.0])
        with pytest.raises(ValueError, match="temperature"):
            TrainingSample(prompt_ids=[1], completion_ids=[1], logprobs=[-1.0], temperature=0.0)
        with pytest.raises(ValueError, match="lacks logprobs"):
            TrainingSample.from_row({"prompt_ids": [1], "completion_ids": [1]})

    def test_the_plain_side_falls_back_to_the_behaviour_at_temperature_one_only(self) -> None:
        (sample,) = make_samples(1, plain_logprobs=None)
        np.testing.assert_array_equal(sample.plain_at_temperature_one, sample.logprobs)
        (sample,) = make_samples(1, plain_logprobs=None, temperatures=(0.7,))
        assert sample.plain_at_temperature_one is None
