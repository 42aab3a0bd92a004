"""What makes a release out of the tree: sdist, wheels, a list of what is in them, and one signature over all.

``make dist`` runs it. It is no part of the package and imports nothing of it but its evidence, and its filters for the
image.
"""
