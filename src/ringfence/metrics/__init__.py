"""Figures for Prometheus and logs for machines. Off unless somebody switches it on, and then the only part that loads
``prometheus_client``; knows no engine and no container.
"""
