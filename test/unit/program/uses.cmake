# SPDX-License-Identifier: Apache-2.0
set(test_links stagger_oracles)
