// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Errors of NCCL as a type of their own, with NCCL's last message.

#if !__has_include(<nccl.h>)
#error "stagger/nccl needs NCCL's header: link stagger::nccl, or add the folder of nccl.h"
#endif
#include <nccl.h>

#include <string>

#include <stagger/core/error.hpp>

namespace stagger::nccl {

/// An error of NCCL. `code()` is peer_failed if another rank is the cause as far as NCCL knows,
/// otherwise device. A communicator that does not block repeats its first error in every later
/// call.
class Error : public stagger::Error {
 public:
  Error(ncclResult_t result, std::string const& sentence)
      : stagger::Error(kind(result), sentence), result_(result) {}

  /// NCCL's own code.
  [[nodiscard]] ncclResult_t result() const noexcept { return result_; }

 private:
  static Errc kind(ncclResult_t result) noexcept {
    return result == ncclRemoteError ? Errc::peer_failed : Errc::device;
  }
  ncclResult_t result_;
};

/// Throws such an error with a sentence made of words and numbers.
template <class... T>
[[noreturn]] [[gnu::cold]] void raise(ncclResult_t result, T const&... pieces) {
  throw Error(result, text(pieces...));
}

namespace detail {

[[gnu::cold]] inline char const* remedy(ncclResult_t result) noexcept {
  switch (result) {
    case ncclInvalidArgument:
      return "mend the call, and make the communicator anew";
    case ncclInvalidUsage:
      return "give each rank a GPU of its own, the same NCCL, and calls that match those of its "
             "peers";
    case ncclRemoteError:
      return "abort, and make a communicator of the ranks that are left";
    default:
      return "abort and make the communicator anew; NCCL_DEBUG=WARN tells more";
  }
}

[[noreturn]] [[gnu::cold]] inline void fail(ncclResult_t result, char const* what, ncclComm_t comm,
                                            int rank) {
  char const* const words = ncclGetLastError(comm);
  raise(result, "rank ", rank, ": NCCL could not ", what, ": ", ncclGetErrorString(result), " (",
        words != nullptr && *words != '\0' ? words : "no further words", "); ", remedy(result));
}

}  // namespace detail
}  // namespace stagger::nccl
