"""What a request may say: the bodies, checked by pydantic, and the errors for what they may not."""
