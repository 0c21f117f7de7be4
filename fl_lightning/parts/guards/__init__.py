"""Guards around parts of a user's own, so that the files beside this room are left with the algorithms' mathematics.

A part may be any class of a user's. So the arguments and classes of parts are checked, and what their methods return;
what they write to, and what they keep and do not save, is watched; what they make of a round is compared between
processes; their random numbers are seeded; and what they kept of a round that broke off is put back. Whatever would be
lost, or would change a result in silence, is an error or a warning with the way out. :mod:`fl_lightning.parts.part`,
the base of all parts, uses some of these files, and others look at whole parts, so nothing is imported here.
"""
