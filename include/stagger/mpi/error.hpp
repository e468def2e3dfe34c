// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Error codes of MPI as errors of stagger, and errors as reports for other processes.

#if !__has_include(<mpi.h>)
#error "stagger/mpi/ needs mpi.h: link stagger::mpi, or find_package(stagger COMPONENTS mpi)"
#endif

#include <mpi.h>

#include <exception>
#include <string>
#include <string_view>

#include <stagger/core/error.hpp>

namespace stagger::mpi {

/// The message of MPI for an error code.
[[nodiscard]] inline std::string error_text(int code) {
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) return text("error ", code);
  return std::string(words, static_cast<std::size_t>(length));
}

/// Throws if MPI refused a call. `doing` names the process, as in "rank 3".
/// @throws Error  Errc::mismatch for a message longer than its buffer, else Errc::io
inline void check(int code, char const* call, std::string_view doing = "this process") {
  if (code == MPI_SUCCESS) return;
  int kind = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &kind);
  if (kind == MPI_ERR_TRUNCATE)
    raise(Errc::mismatch, "the peer sent more than ", doing, " has memory for (", call,
          "); both ends must agree on type and count");
  raise(Errc::io, call, " failed for ", doing, ": ", error_text(code));
}

namespace detail {

/// The report of a process that ends a step, for the others.
struct FailureReport {
  Errc code = Errc::peer_failed;
  std::string message{};
};
[[nodiscard]] inline FailureReport report_of(std::exception_ptr const& failure) noexcept {
  FailureReport told;
  try {
    std::rethrow_exception(failure);
  } catch (Error const& e) {
    told = {e.code(), e.what()};
  } catch (std::exception const& e) {
    told.message = e.what();
  } catch (...) {
    told.message = "it threw something that is no std::exception";
  }
  return told;
}

}  // namespace detail
}  // namespace stagger::mpi
