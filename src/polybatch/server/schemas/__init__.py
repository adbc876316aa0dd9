"""The bodies of requests, under OpenAI's names. Unknown fields and values out of range are refused, never ignored."""
