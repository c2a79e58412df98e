"""What `merge` and `finish` work with: gathering results into a spool, publishing, auditing."""
