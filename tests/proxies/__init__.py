"""Real proxies, run with the very files of deploy/proxy, and users who send all the while."""
