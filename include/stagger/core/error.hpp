// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The one error type of the library, and its codes.

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include <stagger/core/text.hpp>

namespace stagger {

/// What kind of trouble an `Error` reports; the message carries the numbers.
enum class Errc : std::uint8_t {
  bad_configuration,  ///< a policy, a count or a combination that cannot work
  bad_data,      ///< a file or a message that does not parse; the text names file, line and field
  bad_schedule,  ///< a table or a program that was refuted; the text names rank, position, action
  deadline,      ///< nothing moved for as long as a wait may last
  cancelled,     ///< the caller asked the step to stop
  peer_failed,   ///< another rank of the same run ended with an error
  io,            ///< the operating system refused a file or a socket
  device,        ///< a device, its driver or its libraries reported an error
  mismatch,      ///< two things that must agree do not: shapes, a checkpoint of another model
};

/// Thrown by everything in stagger. `what()` is one sentence that names the value and the remedy.
class Error : public std::runtime_error {
 public:
  Error(Errc code, std::string const& sentence) : std::runtime_error(sentence), code_(code) {}

  /// The kind of trouble.
  [[nodiscard]] Errc code() const noexcept { return code_; }

 private:
  Errc code_;
};

namespace detail {
[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void raise(
    Errc code, std::initializer_list<Piece> pieces) {
  throw Error(code, join(pieces));
}
}  // namespace detail

/// Throws an Error with a sentence made of words and numbers: raise(code, "rank ", 3, " of ", 8).
template <class... T> [[noreturn]] void raise(Errc code, T const&... pieces) {
  detail::raise(code, {detail::Piece(pieces)...});
}

}  // namespace stagger
