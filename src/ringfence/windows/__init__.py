"""Job objects of Windows: what is asked of one as data, and what its end means. No system call is made here."""
