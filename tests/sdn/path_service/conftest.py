# SPDX-License-Identifier: Apache-2.0
"""Certificates of a path service and of the first host of its fabric."""

import pytest

from tests.certificates import Authority, Issued
from tests.sdn.path_service.sample import SERVICE, address, fabric


@pytest.fixture(scope="module")
def service(authority: Authority) -> Issued:
    return authority.issue("service", SERVICE)


@pytest.fixture(scope="module")
def first(authority: Authority) -> Issued:
    """The certificate of host 0."""
    return authority.issue("first", address(fabric(), 0), use="clientAuth")
