"""The bytes of blocks that live outside the paged cache, and their way there and back."""
