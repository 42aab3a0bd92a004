"""Figures for Prometheus and logs for machines. Off unless somebody switches it on. Only this part loads
``prometheus_client``; it knows no engine and no container.
"""
