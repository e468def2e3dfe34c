// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/file.hpp>
#include <stagger/json/profile.hpp>
#include <stagger/report/format.hpp>
#include <stagger/stagger.hpp>
#include <stagger/train/profiler.hpp>

#include "cuda/train.hpp"
#include "model/model.hpp"
#include "text.hpp"

namespace gpt {

namespace sg = stagger;

namespace {

sg::cluster::Profile measure(Settings const& s, char const* sources) {
  Text const text(Text::read(s.text.empty() ? own_files(sources) : s.text),
                  static_cast<std::size_t>(s.context));
  std::int64_t const sequences = (s.batch + s.microbatches - 1) / s.microbatches;
  if (s.on_gpu()) return profile_on_gpu(s, text, static_cast<int>(sequences), 15);
  Batch batch;
  batch.inputs.resize(1);
  text.draw(static_cast<std::uint64_t>(s.seed), 0, static_cast<std::size_t>(sequences), batch);
  auto one = sg::Pipeline{make_model<float>({s.layers, s.width, s.heads, s.context},
                                            static_cast<std::uint64_t>(s.seed))}
                 .on_one_device(CrossEntropy<float>{}, sg::optimizer::AdamW{});
  return sg::Profiler({.repeats = 15,
                       .discarded = 3,
                       .samples = static_cast<int>(sequences),
                       .name = "gpt",
                       .layer_names = layer_names(s.layers)})
      .measure(one, batch.inputs[0], batch.targets[0]);
}

}  // namespace

void write_profile(Settings const& settings, char const* sources) {
  sg::WholeFile file(settings.profile);  // opened first, so that an error comes before the work
  auto const profile = measure(settings, sources);
  file.write(sg::json::write_profile(profile));
  file.commit();
  double seconds = 0;
  std::uint64_t bytes = 0;
  for (auto const& layer : profile.layers) {
    seconds += layer.forward_s + layer.backward_s;
    bytes += layer.parameter_bytes;
  }
  std::printf("%s: %d layers, %d sequences forward and backward in %s, %s of parameters\n",
              settings.profile.c_str(), profile.size(), profile.batch,
              sg::report::format_seconds(seconds).c_str(),
              sg::report::format_bytes(static_cast<double>(bytes)).c_str());
}

}  // namespace gpt
