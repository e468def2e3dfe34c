// SPDX-License-Identifier: Apache-2.0
// Data parallelism over MPI: each process holds the whole model, loads its own rows of every
// microbatch, and updates by the gradient of all rows: mpirun -n 4 16_data_parallel
//
// uses: stagger::mpi
// expect: [1-9] process(es)?: step 19  loss 0\.0000
#include <cstdio>

#include <stagger/engine/replicas.hpp>
#include <stagger/mpi/processes.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/stagger.hpp>

namespace sg = stagger;
using Batch = sg::Batch<sg::Tensor<>, sg::Tensor<>>;

struct Scale {  // y = a x, element by element
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1}};
  auto parameters() { return std::tie(a); }
  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[a][0] * x[i];
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) dx[i] = c[a][0] * dy[i];
    for (std::size_t i = 0; i < x.size(); ++i) c.gradient(a)[0] += x[i] * dy[i];
  }
};

// Of a step's 2 microbatches, the 3 rows that a process works on. The model is to learn y = 6 x.
Batch load(int step, int process) {
  Batch batch;
  for (int m = 0; m < 2; ++m) {
    sg::Tensor<> x({3}), y({3});
    for (std::size_t row = 0; row < 3; ++row) {
      int const number = step + m + 3 * process + static_cast<int>(row);
      x[row] = 0.25F * static_cast<float>(number % 9 - 4);
      y[row] = 6 * x[row];
    }
    batch.inputs.push_back(x);
    batch.targets.push_back(y);
  }
  return batch;
}

int main() {
  sg::mpi::Session const session;
  auto train = sg::Pipeline{Scale{}}.with(
      sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0.5},
      sg::mpi::Processes{.own_rows = true}, sg::Options{.replicas = {session.processes()}});
  double loss = 0;
  for (int step = 0; step < 20; ++step) {
    Batch const batch = load(step, session.process());  // only the rows of this process
    loss = sg::run(train.step(batch)).loss;             // of the rows of all processes
  }
  if (session.process() == 0)  // one process prints
    std::printf("%d %s: step 19  loss %.6f\n", session.processes(),
                session.processes() == 1 ? "process" : "processes", loss);
}
