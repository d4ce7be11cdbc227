"""What real libraries answer, one module a library; see scripts/record_orders.py, which runs them."""
