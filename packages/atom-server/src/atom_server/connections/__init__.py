"""Below the app: sockets, what one client may send and how long it may take, who is connected."""
