"""Forward passes in which tokens that several samples share are computed once."""
