"""Twenty prompts as different as can be: languages, code, emoji, blanks, repetition, one token, many."""

PROMPTS: tuple[str, ...] = (
    "The capital of France is",
    "Once upon a time, in a village at the edge of the sea,",
    "def fibonacci(n: int) -> int:\n    ",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are a terse assistant.<|im_end|>\n"
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 5, 8, 13,",
    "Q: If a train leaves at 9:40 and arrives at 12:05, how long is the journey?\nA:",
    "请用一句话解释什么是注意力机制：",
    "Der schnellste Weg von Berlin nach München ist",
    "La photosynthèse est le processus par lequel",
    "🙂🚀🔥 Emoji story:",
    "a",
    "    \n\n\t",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics",',
    "SELECT name, COUNT(*) FROM orders WHERE",
    "the the the the the the the the the the the the the the the the",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "It is a truth universally acknowledged, that " * 12,
    "In numerical linear algebra, a block low-rank matrix " * 8 + "is",
    "Translate to Spanish: " + " ".join(f"word{i}" for i in range(60)),
)
