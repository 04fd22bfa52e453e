"""Sessions that take the steps of their scripts in every order, judged by the checker."""
