// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Everything that a program needs to train, using only the standard library. Everything
///         else has a header of its own: further schedules, partitioners and staleness models,
///         reports, planners, checkpoints, replicas, parameter servers, MPI and GPUs.

#include <stagger/core/requirements.hpp>  // first: its sentences come before any other error

#include <stagger/core/error.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/model/sequential.hpp>
#include <stagger/partition/cuts.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/placement/explicit_map.hpp>
#include <stagger/placement/in_order.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/delayed.hpp>
#include <stagger/staleness/double_buffered.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/weight_stashing.hpp>
#include <stagger/train/pipeline.hpp>
#include <stagger/version.hpp>
