// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What STAGGER_SEPARATE_COMPILATION_MPI leaves out, once for a program: ranks in several
/// processes. Beside stagger/separate.hpp, in the same way.

#include <stagger/engine/make_session.hpp>
#include <stagger/mpi/processes.hpp>

template std::shared_ptr<stagger::detail::Session> stagger::detail::make_session(
    stagger::mpi::Processes const&, List<Layer>, Setup const&);
