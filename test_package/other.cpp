// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

double train_elsewhere() { return train(stagger::schedule::GPipe{}); }
