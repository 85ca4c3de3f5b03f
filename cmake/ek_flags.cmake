# Warnings, sanitizers, and the instruction sets of the files that need one.
set(EK_FLAGS_c -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
  -Wmissing-prototypes -Wundef -Wwrite-strings -Wpointer-arith -Wformat=2 -Wvla)
set(EK_FLAGS_cxx -Wall -Wextra -Wpedantic -Wshadow)
# Messages name places in the source as seen from its root.
foreach(language c cxx)
  list(APPEND EK_FLAGS_${language} -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
  if(EK_WERROR)
    list(APPEND EK_FLAGS_${language} -Werror)
  endif()
endforeach()
set(EK_FLAGS_cuda "$<$<BOOL:${EK_WERROR}>:-Werror=all-warnings>")
add_compile_options("$<$<COMPILE_LANGUAGE:C>:${EK_FLAGS_c}>" "$<$<COMPILE_LANGUAGE:CXX>:${EK_FLAGS_cxx}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:${EK_FLAGS_cuda}>")
# With it GCC 12.2 (Debian 12) compiles some loops wrongly that fill an array of structs whose other
# members are zero: the zeros are written last.  -O3 alone turns it on.
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:C>:-fno-tree-loop-distribution>")
endif()
if(EK_SANITIZE)
  add_compile_options(-fsanitize=${EK_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${EK_SANITIZE})
endif()
if(EK_COVERAGE)
  add_compile_options(--coverage)
  add_link_options(--coverage)
endif()
if(EK_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()
# Every collective verifies that all ranks make the same call (comm).
if(EK_SANITIZE OR CMAKE_BUILD_TYPE MATCHES "^(Checked|Debug)$")
  add_compile_definitions(EK_COMM_CHECKED)
endif()

# A file named *_avx512.c may use AVX-512 with bf16 dot products, *_avx2.c AVX2 with FMA.
# They are entered only where the CPU has them (tensor/cpu chooses at run time).
set(EK_FLAGS_avx512 "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx2 -mfma -mf16c -mbmi2 -mprefer-vector-width=512")
if(CMAKE_BUILD_TYPE STREQUAL "Debug") # there, GCC's intrinsics are macros that convert signs
  string(APPEND EK_FLAGS_avx512 " -Wno-sign-conversion")
endif()
set(EK_FLAGS_avx2 "-mavx2 -mfma -mf16c -mbmi2")
