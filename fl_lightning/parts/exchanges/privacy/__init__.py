"""Privacy: noise on sums of updates or on each update, secure sums, and what they spend."""
