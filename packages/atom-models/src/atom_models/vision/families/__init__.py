"""What files of some families say of pictures, in fields of their own. Torch-free."""
