"""OpenAI-compatible HTTP server over :class:`engine.frontend.async_llm.AsyncLLM`. Never imports torch."""
