"""From generated text to answers: whole, or as events of a stream."""
