# SPDX-License-Identifier: Apache-2.0
set(test_links gpus_once stagger_oracles)
set(test_timeout_s 120)
