"""The way of blocks from one engine to another: what a worker's part of each page needs to get there and be right."""
