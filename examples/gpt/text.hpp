// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What is learned: the bytes of files, split for training and for judging, and windows
/// drawn from them.

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

/// Bytes to learn from. Of every part of the text the last tenth is held out, so that both kinds
/// come from everywhere; no window of training reaches into what is held out. What a step sees
/// depends on the seed and the number of the step alone: a resumed run needs no memory of its data.
class Text {
 public:
  /// @param context  tokens of a window; one byte more is read, the last target
  /// @throws Error   with Errc::bad_data if the text is empty or too short for one window of each
  /// kind
  Text(std::string bytes, std::size_t context);

  /// Whole files, one after the other.
  /// @throws Error  with Errc::io naming a file that cannot be read, that has no end, or that takes
  /// more than half of the memory
  [[nodiscard]] static std::string read(std::vector<std::string> const& files);

  /// Draws `sequences` windows for training.
  /// @param batch  its microbatches are filled: as many as it has, sizes as equal as they can be,
  /// larger ones first
  void draw(std::uint64_t seed, std::int64_t step, std::size_t sequences, Batch& batch) const;

  /// Windows spread evenly over what is held out, always the same.
  void held_out(std::size_t sequences, Batch& batch) const;

  /// How a sample may begin: as a comment where the text is code, else by the text's first word.
  [[nodiscard]] std::string prompt() const;

  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }

  /// A number that differs for different texts.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept;

 private:
  struct Part {
    std::size_t begin;
    std::size_t windows;         // starts of a window within the part
    std::size_t windows_before;  // in the parts before this one
  };

  template <class Pick>
  void fill(std::vector<Part> const& parts, std::size_t sequences, Batch& batch, Pick pick) const;

  std::string bytes_;
  std::size_t context_;
  std::vector<Part> training_;
  std::vector<Part> held_out_;
};

/// The project's headers and documents, sorted by name: what is learned when no text is given.
/// @param hint   folder of the sources when this program was built; when it is gone, the folders
/// above the current one
///               are searched
/// @throws Error with Errc::io if there are no sources
[[nodiscard]] std::vector<std::string> own_files(std::string const& hint);

}  // namespace gpt
