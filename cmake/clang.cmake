# Toolchain of the tsan and fuzz presets: the clang that the distribution has.
find_program(CMAKE_C_COMPILER NAMES clang-14 clang-18 clang-19 clang REQUIRED)
