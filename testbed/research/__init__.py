# SPDX-License-Identifier: Apache-2.0
"""What we compute about papers and clusters. It uses the other packages; only the command line imports it."""
