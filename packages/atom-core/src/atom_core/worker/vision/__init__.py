"""What the worker does about pictures: encodes those that a step needs, and says where their tokens stand."""
