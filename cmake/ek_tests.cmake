# Tests are programs and scripts that exit 0, 1 or 77 (skipped, with the reason printed).
#
#   tests/unit                t_<layer>_*.c link the layer of their name and what it uses
#   tests/cli, tests/crash    t_*.sh and t_*.py call the command, whose path is in EK_COMMAND;
#                             t_<layer>_*.c as above.  Names that end in _long are labelled long.
#                             EK_COMMAND_EMULATED is one whose kernels for CUDA run on the host.
#                             For each MPI there is, EK_MPIEXEC_<MPI> and EK_COMMAND_<MPI> are its
#                             mpiexec and the command that is linked with it (MPICH, OPENMPI)
#   tests/mpi                 t_<layer>_*.c, once for each MPI there is, run with 2, 3 and 4 ranks
#   tests/library             t_*.c link libevenkeel.so, as other programs do
#   tests/cuda                t_tensor_*.c, with the kernels for CUDA, which run on the host there
#   tests/fuzz                fuzz_*.c are replayed over tests/fuzz/corpus/<name>
#                             (to search for more: the preset fuzz, then
#                             build-fuzz/fuzz_<name> tests/fuzz/corpus/<name>)
#   tools                     static checks
# Labels are the folders' names, fuzz, static, long, and plain: tests of times, documents, scripts,
# terminals, jobs, and of commands whose functions other tests call, which do not run with
# sanitizers.
#
# Test programs are compiled with few optimizations: it is the layers' time that matters.

if(CMAKE_BUILD_TYPE STREQUAL "Checked")
  set(EK_TEST_SLOWNESS 3)
else()
  set(EK_TEST_SLOWNESS 1)
endif()

# Threads that wait for work sleep, as two tests share two cores; tsan is not told about races in
# libraries that were built without it.  (GCC 12 misaligns 64-byte vectors on the stack when asan
# looks for use after return, so that is off.)
#
# Several ranks on this machine, as root or not: Open MPI wants to be told that ranks may share
# cores, and then yields them; system calls that read another process's memory are often forbidden
# in containers.
set(EK_TEST_ENVIRONMENT
  OMP_WAIT_POLICY=passive
  EK_TEST_DATA=${CMAKE_SOURCE_DIR}/tests
  ASAN_OPTIONS=detect_leaks=1
  LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0
  UBSAN_OPTIONS=print_stacktrace=1
  TSAN_OPTIONS=ignore_noninstrumented_modules=1
  OMPI_ALLOW_RUN_AS_ROOT=1
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_mpi_yield_when_idle=1
  OMPI_MCA_btl_vader_single_copy_mechanism=none)

add_library(ek_test_flags INTERFACE)
target_compile_options(ek_test_flags INTERFACE $<$<CONFIG:Release>:-O1>)

set(EK_TEST_PLAIN t_balance_replicate_large t_bench t_bench_a2a t_bench_balance t_bench_collectives
  t_bench_costs t_bench_moe t_cluster t_document_mask t_documented_commands t_dry_run t_eval_export
  t_evaluate t_expert_store t_fit t_hangup t_launch t_layout t_live_line t_long_runs
  t_predict t_public t_public_moe t_run_settings t_tokenizers t_tokens t_train_evaluate t_train_kernel_work
  t_train_ranks t_train_reference t_train_steady t_train_work)

# ek_register(name label seconds): what every test has in common.
function(ek_register name label seconds)
  if(name MATCHES "_long$")
    list(APPEND label long)
    set(seconds 7200)
  endif()
  if(name IN_LIST EK_TEST_PLAIN)
    list(APPEND label plain)
  endif()
  if(seconds LESS 300) # a limit ends what hangs; a busy machine fails no test
    set(seconds 300)
  endif()
  math(EXPR seconds "${seconds} * ${EK_TEST_SLOWNESS}")
  set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT ${seconds}
    SKIP_RETURN_CODE 77 ENVIRONMENT "${EK_TEST_ENVIRONMENT}")
endfunction()

function(ek_add_program source label seconds)
  get_filename_component(name ${source} NAME_WE)
  string(REGEX REPLACE "^t_([a-z0-9]+).*" "\\1" layer ${name})
  if(NOT TARGET ek_${layer})
    message(WARNING "${source}: there is no layer ${layer}; the test will fail")
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E false)
    ek_register(${name} ${label} ${seconds})
    return()
  endif()
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ek_${layer} ek_test_flags)
  target_compile_definitions(${name} PRIVATE EK_TEST_DATA="${CMAKE_SOURCE_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name})
  ek_register(${name} ${label} ${seconds})
endfunction()

function(ek_add_script script label seconds)
  get_filename_component(name ${script} NAME_WE)
  if(script MATCHES "\\.py$")
    add_test(NAME ${name} COMMAND python3 ${script})
  else()
    add_test(NAME ${name} COMMAND bash ${script})
  endif()
  ek_register(${name} ${label} ${seconds})
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
    EK_COMMAND=${CMAKE_BINARY_DIR}/evenkeel PYTHONDONTWRITEBYTECODE=1)
  if(TARGET evenkeel-emulated)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
      EK_COMMAND_EMULATED=${CMAKE_BINARY_DIR}/evenkeel-emulated)
  endif()
  foreach(flavour IN LISTS EK_MPI_FLAVOURS)
    string(TOUPPER ${flavour} upper)
    set(command evenkeel)
    if(NOT flavour STREQUAL EK_MPI_CHOSEN)
      set(command evenkeel-${flavour})
    endif()
    if(EK_MPIEXEC_${upper})
      set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
        EK_MPIEXEC_${upper}=${EK_MPIEXEC_${upper}} EK_COMMAND_${upper}=${CMAKE_BINARY_DIR}/${command})
    endif()
  endforeach()
endfunction()

foreach(folder unit cli crash)
  file(GLOB programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/t_*.c)
  foreach(source IN LISTS programs)
    ek_add_program(${source} ${folder} 120)
  endforeach()
  file(GLOB scripts CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/tests/${folder}/t_*.sh ${CMAKE_SOURCE_DIR}/tests/${folder}/t_*.py)
  foreach(script IN LISTS scripts)
    ek_add_script(${script} ${folder} 1800)
  endforeach()
endforeach()

# Calls that tests see, and pass on (tests/watched_ops.h).
foreach(call ek_exec_run ek_comm_all_reduce_at ek_comm_reduce_scatter_at ek_comm_all_gather_at
        ek_comm_multicast_at ek_comm_multireduce_at ek_comm_all_to_all_at ek_comm_send ek_comm_recv)
  target_link_options(t_train_work PRIVATE LINKER:--wrap=${call})
endforeach()
target_link_options(t_exec_async PRIVATE LINKER:--wrap=ek_backoff_wait)
foreach(call ek_exec_run ek_kernels_create)
  target_link_options(t_train_kernel_work PRIVATE LINKER:--wrap=${call})
endforeach()

# All drawn layouts of tests that take a sample of them.
foreach(name t_train_balance t_train_equal t_train_offload_layouts)
  add_test(NAME ${name}.all COMMAND ${name})
  ek_register(${name}.all "unit;long" 7200)
  set_property(TEST ${name}.all APPEND PROPERTY ENVIRONMENT EK_TEST_ALL=1)
endforeach()

# The same of scripts whose tests take the MPIs in turn, or some of their cases.
foreach(script cli/t_cuda cli/t_train_ranks crash/t_elastic_bias crash/t_elastic_ends crash/t_elastic_killed crash/t_elastic_lost
        crash/t_elastic_zero crash/t_ranks)
  get_filename_component(name ${script} NAME)
  get_filename_component(folder ${script} DIRECTORY)
  get_test_property(${name} ENVIRONMENT environment)
  add_test(NAME ${name}.all COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/${script}.py)
  ek_register(${name}.all "${folder};long" 7200)
  set_tests_properties(${name}.all PROPERTIES ENVIRONMENT "${environment};EK_TEST_ALL=1")
endforeach()

# Kernels for CUDA, on the host (cmake/ek_cuda.cmake), and as t_..._gpu on a GPU.
file(GLOB programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda/t_*.c)
foreach(source IN LISTS programs)
  get_filename_component(name ${source} NAME_WE)
  if(TARGET ek_tensor_emulated)
    ek_add_program(${source} unit 120)
    target_link_libraries(${name} PRIVATE ek_tensor_emulated)
  endif()
  if(TARGET ek_tensor_cuda)
    add_executable(${name}_gpu ${source})
    target_include_directories(${name}_gpu PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${name}_gpu PRIVATE ek_tensor ek_tensor_cuda)
    set_target_properties(${name}_gpu PROPERTIES LINKER_LANGUAGE C)
    add_test(NAME ${name}_gpu COMMAND ${name}_gpu)
    ek_register(${name}_gpu "cuda" 300)
  endif()
endforeach()

# ek_add_mpi_program(source seconds): t_x.c is t_x.<flavour>.<ranks> in ctest.
function(ek_add_mpi_program source seconds)
  get_filename_component(name ${source} NAME_WE)
  string(REGEX REPLACE "^t_([a-z0-9]+).*" "\\1" layer ${name})
  foreach(flavour IN LISTS EK_MPI_FLAVOURS)
    string(TOUPPER ${flavour} upper)
    add_executable(${name}_${flavour} ${source})
    target_include_directories(${name}_${flavour} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${name}_${flavour} PRIVATE ek_${layer} ek_test_flags)
    target_include_directories(${name}_${flavour} SYSTEM PRIVATE ${EK_PC_${upper}_INCLUDE_DIRS})
    set_target_properties(${name}_${flavour} PROPERTIES ENABLE_EXPORTS ON) # t_comm_end_mpi.c
    ek_use_mpi(${name}_${flavour} ${flavour})
    foreach(ranks 2 3 4)
      set(test ${name}.${flavour}.${ranks})
      if(EK_MPIEXEC_${upper})
        add_test(NAME ${test} COMMAND ${EK_MPIEXEC_${upper}} -n ${ranks} $<TARGET_FILE:${name}_${flavour}>)
      else()
        add_test(NAME ${test} COMMAND sh -c "echo skipped: there is no mpiexec of ${flavour}; exit 77")
      endif()
      ek_register(${test} mpi ${seconds})
      set_tests_properties(${test} PROPERTIES PROCESSORS 2)
    endforeach()
  endforeach()
endfunction()

file(GLOB programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/mpi/t_*.c)
foreach(source IN LISTS programs)
  ek_add_mpi_program(${source} 60)
endforeach()

# Programs that use libevenkeel.so as others do.  Some are run by two ranks as well.
file(GLOB programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/library/t_*.c)
foreach(source IN LISTS programs)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE evenkeel_library PkgConfig::JANSSON m)
  add_test(NAME ${name} COMMAND ${name})
  ek_register(${name} cli 120)
endforeach()
string(TOUPPER "${EK_MPI_CHOSEN}" upper)
foreach(name t_locale t_planner)
  if(EK_MPI_CHOSEN AND EK_MPIEXEC_${upper})
    add_test(NAME ${name}.ranks COMMAND ${EK_MPIEXEC_${upper}} -n 2 $<TARGET_FILE:${name}>)
    ek_register(${name}.ranks cli 120)
    set_tests_properties(${name}.ranks PROPERTIES PROCESSORS 2)
  endif()
endforeach()
foreach(name t_moe_layer t_moe_layer_calls)
  foreach(ranks 2 3 4)
    if(EK_MPI_CHOSEN AND EK_MPIEXEC_${upper})
      add_test(NAME ${name}.${ranks} COMMAND ${EK_MPIEXEC_${upper}} -n ${ranks} $<TARGET_FILE:${name}>)
      ek_register(${name}.${ranks} cli 120)
      set_tests_properties(${name}.${ranks} PROPERTIES PROCESSORS 2)
    endif()
  endforeach()
endforeach()

# One program per fuzz_<x>.c: with libFuzzer under EK_FUZZ, else with a main that replays files.
file(GLOB fuzzers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
get_property(layers GLOBAL PROPERTY EK_LAYERS)
list(REVERSE layers)
foreach(source IN LISTS fuzzers)
  get_filename_component(name ${source} NAME_WE)
  string(REPLACE "fuzz_" "" subject ${name})
  if(EK_FUZZ)
    add_executable(${name} ${source})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${name} PRIVATE ${layers})
  elseif(EXISTS ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.c)
    add_executable(${name}_replay ${source} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.c)
    target_link_libraries(${name}_replay PRIVATE ${layers})
    add_test(NAME ${name}.replay
      COMMAND ${name}_replay ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${subject})
    ek_register(${name}.replay fuzz 120)
  else()
    message(WARNING "tests/fuzz/replay.c is missing: ${name} is not replayed")
  endif()
endforeach()

# The examples, as their first lines say to build and run them.
foreach(name balance moe_layer simulate)
  add_executable(example_${name} ${CMAKE_SOURCE_DIR}/examples/${name}.c)
  target_link_libraries(example_${name} PRIVATE evenkeel_library)
endforeach()
add_test(NAME example.balance.c COMMAND example_balance)
add_test(NAME example.moe_layer.c COMMAND example_moe_layer)
add_test(NAME example.simulate.c COMMAND example_simulate
  ${CMAKE_SOURCE_DIR}/examples/clusters/h100-64.json)
foreach(name balance moe_layer simulate)
  if(EK_SANITIZE)
    add_test(NAME example.${name}.py COMMAND sh -c
      "echo skipped: a sanitizer wants to be loaded before Python; exit 77")
  else()
    add_test(NAME example.${name}.py COMMAND python3 ${CMAKE_SOURCE_DIR}/examples/${name}.py
      $<TARGET_FILE:evenkeel_library>)
  endif()
endforeach()
foreach(example balance.c balance.py moe_layer.c moe_layer.py simulate.c simulate.py)
  ek_register(example.${example} cli 60)
endforeach()
set_tests_properties(example.balance.c example.balance.py PROPERTIES
  PASS_REGULAR_EXPRESSION "3200 to 1400.*rank 3.*assignments leave their rank")
set_tests_properties(example.moe_layer.c PROPERTIES
  PASS_REGULAR_EXPRESSION "step   0  loss 6.*step 200  loss 1\\.[0-9]")
set_tests_properties(example.simulate.c PROPERTIES
  PASS_REGULAR_EXPRESSION "simulate: {.*\"step_ms\".*search: {.*\"best\"")
set_tests_properties(example.moe_layer.py PROPERTIES
  PASS_REGULAR_EXPRESSION "step 200: loss.*imitates the other")
set_tests_properties(example.simulate.py PROPERTIES
  PASS_REGULAR_EXPRESSION "ep 8: a step of.*ms with --pp.*quarter of NVLink.*cluster h100-64 has 64")

function(ek_add_check name)
  add_test(NAME static.${name} COMMAND ${CMAKE_SOURCE_DIR}/tools/${name}.sh ${ARGN})
  ek_register(static.${name} static 120)
endfunction()
ek_add_check(layers)
ek_add_check(docs)
ek_add_check(links)
ek_add_check(words)
ek_add_check(headers)
ek_add_check(api_docs)
set(modules "")
foreach(flavour IN LISTS EK_MPI_FLAVOURS)
  list(APPEND modules $<TARGET_FILE:evenkeel_mpi_${flavour}>)
endforeach()
ek_add_check(symbols $<TARGET_FILE:evenkeel_library> ${modules})
ek_add_check(format)
ek_add_check(greps)
ek_add_check(shellcheck)
