// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The training text: bytes of files, split into training and held-out parts, from which
/// windows are drawn.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/engine/step.hpp>

#include "model/embedding.hpp"

namespace gpt {

/// Microbatches of token sequences and of the bytes that follow each token.
using Batch = stagger::Batch<Tokens, Tokens>;

/// The bytes of the text. The last tenth of every part of the text is held out, so that training
/// and held-out windows both come from the whole text and do not overlap. The windows of a step
/// depend only on the seed and the number of the step, so a resumed run needs no state of its data.
class Text {
 public:
  /// @param context  tokens of a window, which has one byte more for the last target
  /// @throws Error   with Errc::bad_data if the text is too short for a training window and a
  ///                 held-out window
  Text(std::string bytes, std::size_t context);

  /// Concatenates files.
  /// @throws Error  with Errc::io, naming a file that cannot be read, is endless, or takes more
  ///                than half of the memory
  [[nodiscard]] static std::string read(std::vector<std::string> const& files);

  /// Draws `sequences` windows for training.
  /// @param batch  the windows are distributed over its microbatches as evenly as possible, with
  ///               larger microbatches first
  void draw(std::uint64_t seed, std::int64_t step, std::size_t sequences, Batch& batch) const;

  /// Windows spread evenly over the held-out text, always the same.
  void held_out(std::size_t sequences, Batch& batch) const;

  /// A prompt for a sample: the start of a comment if the text is code, otherwise its first word.
  [[nodiscard]] std::string prompt() const;

  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }

  /// A hash of the text.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept;

 private:
  struct Part {
    std::size_t begin;
    std::size_t windows;         // possible starts of a window in this part
    std::size_t windows_before;  // in the parts before this one
  };

  template <class Pick>
  void fill(std::vector<Part> const& parts, std::size_t sequences, Batch& batch, Pick pick) const;

  std::string bytes_;
  std::size_t context_;
  std::vector<Part> training_;
  std::vector<Part> held_out_;
};

/// The project's headers and documentation, sorted by name: the default training text.
/// @param hint   folder of the sources when this program was built; if it is gone, the folders
///               above the current one are searched
/// @throws Error with Errc::io if there are no sources
[[nodiscard]] std::vector<std::string> own_files(std::string const& hint);

}  // namespace gpt
