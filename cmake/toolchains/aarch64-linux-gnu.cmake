# Debian's cross compiler for 64-bit Arm. What is built runs in qemu-user; its processor is that of
# the environment variable QEMU_CPU.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# The limit: qemu keeps books on each page of a mapping, touched or not, and a test asks for one that
# is larger than any memory.
set(CMAKE_CROSSCOMPILING_EMULATOR
  prlimit;--as=8589934592;qemu-aarch64;-L;/usr/aarch64-linux-gnu)
