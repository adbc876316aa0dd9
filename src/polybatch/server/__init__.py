"""An HTTP server of one program, in the shapes of OpenAI's API. Needs the extra ``server``."""
