"""What a request may ask for, and which backend follows it; there is no vocabulary here."""
