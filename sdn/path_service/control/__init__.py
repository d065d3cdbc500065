# SPDX-License-Identifier: Apache-2.0
"""What operators ask of a path service, and what survives its process: drains, pins by hand and dead links.

`book` has the entries and their changes, `store` the file, `writer` the commits, `resolve` what entries mean on a
topology, `effects` what a change would do, `control` what a request does. `client` asks a running service.
"""
