// SPDX-License-Identifier: Apache-2.0
// An MPI program of somebody else's: each rank sends bytes to the next one, and takes those of the one before.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  const int bytes = argc > 1 ? atoi(argv[1]) : 1 << 20;
  int rank = 0;
  int ranks = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  char* out = malloc((size_t)bytes);
  char* in = calloc((size_t)bytes, 1);
  for (int i = 0; i < bytes; ++i) out[i] = (char)(rank + i);
  const int next = (rank + 1) % ranks;
  const int before = (rank + ranks - 1) % ranks;
  MPI_Sendrecv(out, bytes, MPI_CHAR, next, 0, in, bytes, MPI_CHAR, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  int wrong = 0;
  for (int i = 0; i < bytes; ++i) wrong += in[i] != (char)(before + i);
  free(out);
  free(in);
  MPI_Finalize();
  if (wrong) fprintf(stderr, "rank %d: %d wrong bytes\n", rank, wrong);
  return wrong != 0;
}
