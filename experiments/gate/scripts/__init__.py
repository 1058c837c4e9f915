"""Programs that run inside a revision under test. They import that revision's ``engine`` and nothing else of
ours."""
