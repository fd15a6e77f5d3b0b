"""What a reply says: OpenAI's response objects and stream chunks, written as plain dictionaries."""
