# SPDX-License-Identifier: Apache-2.0
"""One model of a training iteration: operators, strategies, task graphs, their simulation, and a closed form.

Pure: modules here import numpy and one another, and nothing else of paralet.
"""
