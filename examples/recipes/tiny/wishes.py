"""Style instructions: what each asks for, and the phrases people say it with.

A `Wish` is the meaning; the lists below are the words. `instructions` puts them together into sentences. The
lists are long on purpose: a model this small understands the words that it has met, and little else.
"""

from dataclasses import dataclass
from typing import Literal

from recipes.tiny.options import split_options


@dataclass(frozen=True)
class Wish:
    """Wish of a user or an operator for a reply; None leaves that side to the model's habit.

    Attributes:
        form: "bold" (markdown, numbered) or "plain" (sentences).
        size: "short" (no told steps; for a grade: the verdict only) or "steps".
        tone: "warm" (kind and specific) or "curt".
    """

    form: Literal["bold", "plain"] | None = None
    size: Literal["short", "steps"] | None = None
    tone: Literal["warm", "curt"] | None = None


NO_WISH = Wish()


@dataclass(frozen=True)
class Phrases:
    """The words for one wish.

    Attributes:
        unwanted: noun phrases that the user is tired of ("bold text").
        wanted: noun phrases for what is wanted, fitting "write it in ..." ("plain sentences").
        manners: ends of "write it ..." ("like a person would").
        actions: imperatives ("spell out the mistake").
        complaints: statements about the last reply ("it looks like an AI wrote it").
    """

    unwanted: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    manners: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()


PLAIN = Phrases(
    unwanted=split_options(
        "bold|bold text|bold words|bold letters|bold type|bold face|boldface|bolding|bold print|"
        "asterisks|stars|double stars|star signs|"
        "markdown|markdown formatting|markup|formatting|fancy formatting|heavy formatting|"
        "special formatting|styling|headings|"
        "headers|titles|labels|step labels|numbered steps|numbered lists|numbered points|"
        "numbers in front|numbering|lists|"
        "bullet points|bullets|bullet lists|symbols|special characters|special signs|AI style|robot style|"
        "AI formatting|structure|outlines|list style|list format|sections|steps in bold|bold steps|"
        "bold headings|"
        "bold labels|bold and lists|bold or lists|asterisks and numbers|markdown or bold|lists and headings"
    ),
    wanted=split_options(
        "plain sentences|plain text|plain prose|prose|simple prose|simple sentences|"
        "normal sentences|full sentences|"
        "complete sentences|ordinary sentences|ordinary words|everyday words|everyday language|"
        "a short paragraph|"
        "one paragraph|a single paragraph|a simple paragraph|a normal paragraph|running text|flowing text|"
        "continuous text|natural language|natural sentences|plain English|plain language|"
        "simple words|plain words|"
        "regular sentences|regular text|normal text|normal writing|simple text|a few sentences|"
        "two or three sentences|"
        "human language|a human style|a natural style|a plain style|a conversational tone|unformatted text|"
        "sentences only|words only|just sentences|just words|a natural voice|a few plain lines|"
        "flowing sentences"
    ),
    manners=split_options(
        "like a person would|like a human would|like a person|like a human|like a real person|"
        "like a friend would|"
        "like a student would|like a pupil would|like I would write it|as I would write it myself|"
        "like somebody talking|"
        "the way people talk|the way people write|the way a person talks|the way you would say it out loud|"
        "as if you were talking to me|as if you were talking to a friend|"
        "as if you explained it to a friend|"
        "like a normal text|like a normal message|like in a letter|more naturally|naturally|"
        "more simply|plainly|"
        "by hand, so to speak|so it sounds human|so it reads like a person|so it does not look like AI|"
        "so that it looks like my own writing|like in a notebook|in a human way|in a normal way|"
        "in a plain way"
    ),
    actions=split_options(
        "talk like a person|sound more human|sound like a human|sound natural|keep it plain|"
        "keep the text plain|"
        "leave everything unformatted|turn the list into sentences|turn that into sentences|"
        "make it sound human|"
        "make it plain|make it look handwritten|make it less robotic|make it look less like AI|"
        "be less formal|"
        "be more natural|write normally|just write normally|just tell me in words|"
        "tell me in your own words|"
        "tell it like a story|speak normally|use whole sentences instead of a list|"
        "connect the steps into sentences|"
        "write sentences instead of a list|put the steps into sentences|put the steps in normal sentences"
    ),
    complaints=split_options(
        "the asterisks are distracting|it looks like an AI wrote it|this looks like AI|it looks like AI|"
        "that looks so much like AI|my teacher will think a robot wrote it|my teacher will know it is AI|"
        "my teacher does not like markdown|my teacher will see that a computer wrote it|"
        "it reads like a machine|"
        "it sounds robotic|it sounds like a robot|it feels robotic|the numbered list feels robotic|"
        "the list feels stiff|the bold hurts my eyes|all that bold is too much|the bold is too much|"
        "there is too much bold|nobody writes homework like that|no student writes like that|"
        "no kid writes like that|"
        "I can't copy the stars into my notebook|the stars do not belong in my notebook|"
        "that looks like ChatGPT|"
        "it looks like a chatbot wrote it|it's too formatted|it is over-formatted|it looks like a template|"
        "I would never write it that way|that is not how people write|that is not how I write|"
        "people do not write like that|"
        "the layout is weird|the layout looks artificial|the formatting is too much|"
        "the formatting looks fake|"
        "there are too many stars|there are asterisks all over|bold everywhere again|"
        "it looks computer generated|"
        "it looks generated|it looks machine-made|it reads like a manual|"
        "it reads like instructions for a machine|"
        "it is too stiff|it is too formal|I do not write in bold|I do not want it to look like AI|"
        "I do not want it to look generated|the headings look silly|"
        "the steps look like a machine made them|"
        "it does not look like something I wrote|it does not sound like a person|it does not sound human|"
        "my screen shows the stars|my app does not show markdown|I see stars everywhere|"
        "the markdown is not rendered"
    ),
)  # fmt: skip

BOLD = Phrases(
    unwanted=split_options(
        "long paragraphs|plain prose|a wall of text|blocks of text|running text|plain text|prose|"
        "paragraphs|"
        "unformatted text|one long paragraph|plain sentences"
    ),
    wanted=split_options(
        "bold|bold steps|bold labels|bold headings|bold step numbers|numbered steps|a numbered list|"
        "numbered points|"
        "markdown|markdown formatting|markdown with bold|clear formatting|clear headings|bold and numbers|"
        "bold numbered steps|structured steps|step labels|a list with bold labels|"
        "a bold numbered list|list form|"
        "formatted steps|a formatted list|a clear structure with bold|numbers and bold letters|"
        "bold letters|numbered lines|bold titles|step numbers|a clear list|a list with numbers|"
        "bold step labels|markdown lists|numbered bold lines|a bold answer|a bold result"
    ),
    manners=split_options(
        "as a list|as a numbered list|as numbered steps|as bold steps|as a bold list|as a formatted list|"
        "with numbers|with numbers and bold|with bold labels|with step labels|with markdown|with headings|"
        "with numbered steps|with a bold final answer|with a bold answer at the end|with a clear structure|"
        "so that I can scan it|so I can find the steps|so I can see the steps at a glance|"
        "so the steps stand out|so the answer stands out|with the answer in bold|with the steps in bold|"
        "step by step with numbers"
    ),
    actions=split_options(
        "number the steps|number each step|put the final answer in bold|make the final answer bold|"
        "make the steps bold|highlight the steps in bold|mark the steps in bold|add bold labels|"
        "add step numbers|"
        "format it with markdown|format the steps|put the answer in bold at the end|make a numbered list|"
        "list the steps with numbers|use bold for the steps|use bold for the answer|give the steps numbers|"
        "end with a bold final answer|structure it with headings|bring back the bold|"
        "put numbers in front of the steps|put a number in front of each step|put each step in bold|"
        "set the answer in bold|set the labels in bold|write the steps in bold|write the answer in bold|"
        "write the final answer in bold letters|number everything|label each step|label the steps in bold|"
        "turn it into a list|turn the text into a numbered list|break it into numbered steps|"
        "split it into bold steps|format it|format it as a list|make the steps stand out|"
        "make the answer stand out|go back to the bold steps|go back to the list|use numbers and bold"
    ),
    complaints=split_options(
        "the plain text is hard to read|I can't find the answer in all that text|"
        "it is one big block of text|"
        "it is hard to follow without numbers|I lose track of the steps|I miss the bold|"
        "I miss the numbered steps|"
        "I liked the bold steps better|the steps should stand out|the answer should stand out|"
        "the answer is hard to find|it needs more structure|it needs formatting|"
        "sentences are harder to read than lists|the paragraph is hard to read|a paragraph is hard to follow|"
        "the text is hard to scan|numbered steps help me|bold steps help me|bold labels help me find things|"
        "a list is easier to read|lists are easier for me|I like lists better|I like it with numbers|"
        "I like bold steps|I like the steps numbered|I read lists faster|the steps run together|"
        "everything runs together|I want to see the steps at a glance|the answer gets lost in the text|"
        "my teacher wants numbered steps|the bold was better|the list was better"
    ),
)  # fmt: skip

WARM = Phrases(
    unwanted=split_options(
        "one-word grades|cold grades|cold comments|curt comments|short verdicts|bare verdicts|"
        "a bare verdict|"
        "dry comments|harsh words|a cold tone|a harsh tone|bare grades|a bare grade|robotic grading"
    ),
    wanted=split_options(
        "a warm tone|a kind tone|a friendly tone|a warmer tone|a kinder tone|a gentle tone|"
        "warm words|kind words|"
        "friendly words|encouraging words|a personal comment|a kind comment|a warm comment|"
        "a specific comment|"
        "an encouraging comment|specific feedback|warm feedback|kind feedback|helpful feedback|"
        "detailed feedback|"
        "personal feedback|encouraging feedback|real feedback|a supportive way|an encouraging way|"
        "a positive way|"
        "a friendly way|more warmth|some encouragement|some praise"
    ),
    manners=split_options(
        "like a kind teacher would|like a good teacher|as a caring teacher would|more warmly|more kindly|"
        "more gently|in a friendlier way|in a kinder way|so the child feels encouraged|"
        "so the student learns from it|"
        "so the student knows what went well|with more heart|with some warmth|with encouragement"
    ),
    actions=split_options(
        "be warmer|be kinder|be nicer|be friendlier|be gentler|be kind|be warm|be friendly|be nice|"
        "be encouraging|"
        "be more encouraging|be supportive|be more supportive|be more positive|be patient|be more personal|"
        "be specific|be more specific|be more detailed|be more helpful|be specific about the mistake|"
        "be specific about the work|be warm and specific|be kind and specific|"
        "say what the student did right|"
        "say what the student did well|say specifically what went right|say what went right|"
        "say what went well|"
        "say what was good|say where the slip is|say where the mistake is|say where it went wrong|"
        "say what went wrong|tell them what went right|tell the student what was good|"
        "tell them what they did well|"
        "tell the student where the error is|name what was done well|name the mistake|name the slip|"
        "point out where the slip is|point out what is good|point out the mistake kindly|"
        "point out the strong part|"
        "explain the mistake|explain what went wrong|explain where the error is|"
        "show where the slip happened|"
        "mention the good part|mention what worked|mention the effort|praise the effort|"
        "praise what is right|"
        "praise the student|praise the good steps|add some encouragement|add a kind word|add some praise|"
        "add what was right|encourage the student|encourage the child|encourage them|cheer them up|"
        "comment on the steps|comment on the work|comment on what went right|give more detail|"
        "give a reason|"
        "give them hope|motivate the student|sound warmer|sound kinder|sound friendlier|show some kindness|"
        "show some warmth|write more than a verdict|write a few kind sentences|talk to the student kindly"
    ),
    complaints=split_options(
        "that is so cold|so cold|it is too cold|it sounds cold|it feels cold|it reads cold|"
        "it is a bit cold|"
        "that is too short|that is too curt|it is too dry|it is too harsh|it sounds harsh|that is harsh|"
        "that sounds unkind|that is not very kind|it is not very kind|that is not very friendly|"
        "it is not helpful|it does not help the student|one word does not help them|"
        "a bare verdict does not help|"
        "my students need encouragement|the students need some warmth|the child needs encouragement|"
        "the kid will be sad|"
        "the student will be discouraged|children give up when they read that|"
        "it does not say what went right|"
        "it does not say where the slip is|it does not say why|it says nothing about the work|"
        "it says nothing specific|this tells the student nothing|no one learns from that|"
        "nobody learns from that|"
        "it feels like a machine graded it|it sounds like a machine|it sounds like a stamp|"
        "there is no warmth in it|"
        "there is no praise|there is nothing personal|I want my students to feel seen|"
        "that is no comment at all|"
        "the comment is too general|it is too vague|it is too brief|a kind word is missing|"
        "the encouragement is missing"
    ),
)  # fmt: skip

CURT = Phrases(
    unwanted=split_options(
        "comments|praise|encouragement|extra words|kind words|explanations|small talk|chatter|"
        "long comments|"
        "feedback|friendly words|remarks|extra comments|nice words|details|a long text|"
        "praise or comments|comments or praise|compliments|reasons|motivation"
    ),
    wanted=split_options(
        "one line|one word|a single line|a short form|short form|very few words|a bare verdict|"
        "a bare grade|the verdict only|the grade only|only the verdict|only the grade|just the verdict|"
        "just the grade|the verdict alone|the grade alone|the verdict and nothing more|"
        "the grade and no more|a short verdict|a brief verdict|a brief grade|as few words as possible|"
        "correct or incorrect|a yes or no"
    ),
    manners=split_options(
        "in one line|in one word|in few words|in as few words as possible|briefly|very briefly|"
        "as briefly as possible|as short as possible|as shortly as you can|without any comment|"
        "without praise|without comments|without extra words|with the verdict only|with the grade only|"
        "with nothing but the grade|concisely|curtly"
    ),
    actions=split_options(
        "be brief|be short|be curt|be concise|keep it short|keep it brief|keep the grade short|"
        "just give the grade|give only the grade|give only the verdict|just say correct or incorrect|"
        "only say if it is right|only tell me the verdict|skip the praise|skip the encouragement|"
        "skip the comments|come to the point|get to the point|leave out the praise|make it shorter|"
        "be as brief as possible|be as short as you can|keep it as short as possible|keep it concise|"
        "keep the comment short|keep your grading short|keep the grading short|grade it in one line|"
        "grade it in a word|grade it briefly|just grade it|only grade it|just mark it|"
        "tell me only correct or incorrect|say correct or incorrect and stop|say only whether it is right|"
        "stop after the verdict|stop after the grade|give the verdict alone|give me the grade and no more|"
        "leave out everything but the grade|drop everything but the verdict"
    ),
    complaints=split_options(
        "it is too long|that is too chatty|there is too much praise|I only need the grade|"
        "I only need the verdict|"
        "it is too wordy|that is too much text|I have no time for comments|a verdict is enough|"
        "the grade is enough|a bare verdict is enough|one word is enough|one line is enough|"
        "the verdict alone will do|the grade alone will do|only the verdict matters|only the grade matters|"
        "I need nothing but the grade|I need nothing but the verdict|I just want the grade|"
        "I just want the verdict|I want nothing else|I do not need the rest|no comment is needed|"
        "no praise is needed|I have many papers to grade|I have to grade a whole class|"
        "there are too many words|it says too much"
    ),
)  # fmt: skip

SHORT = Phrases(
    unwanted=split_options("steps|explanations|extra words|long explanations|details|small talk"),
    wanted=split_options("one line|a single line|a short form|short form|very few words"),
    actions=split_options(
        "be brief|be short|be concise|keep it short|keep it brief|just give the answer|"
        "give only the answer|"
        "give only the result|just tell me the result|only give the number|skip the steps|"
        "skip the explanation|"
        "leave out the steps|come to the point|get to the point|make it shorter|answer in one line"
    ),
    complaints=split_options(
        "it is too long|I only need the answer|I only need the result|it is too wordy|"
        "that is too much text|"
        "I have no time to read it all|the answer is enough|the result is enough"
    ),
)  # fmt: skip

STEPS = Phrases(
    unwanted=split_options("answers without steps|bare answers|bare results"),
    wanted=split_options("small steps|clear steps|single steps"),
    actions=split_options(
        "show the steps|show all steps|show your work|show your working|show how you got it|"
        "explain each step|"
        "explain how you got it|explain the steps|write out the steps|include the steps|do it step by step|"
        "go step by step|explain it step by step|tell me how it works"
    ),
    complaints=split_options(
        "I do not see how you got there|I need the steps|I need to see the steps|"
        "my teacher wants the steps|"
        "my teacher wants to see the work|the steps are missing|that is too short to follow"
    ),
)  # fmt: skip

PHRASES: dict[Wish, Phrases] = {
    Wish(form="plain"): PLAIN,
    Wish(form="bold"): BOLD,
    Wish(tone="warm"): WARM,
    Wish(tone="curt"): CURT,
    Wish(size="short"): SHORT,
    Wish(size="steps"): STEPS,
}
