# `make docs`, `ninja docs`: the API reference, from the comments of the public headers, in api/html of
# the build folder.  Needs doxygen.  cmake --install installs it if it was made.
set(EK_DOCS_SOURCE ${CMAKE_SOURCE_DIR})
set(EK_DOCS_OUTPUT ${CMAKE_BINARY_DIR}/api)
configure_file(${CMAKE_SOURCE_DIR}/cmake/Doxyfile.in ${CMAKE_BINARY_DIR}/Doxyfile @ONLY)
find_program(EK_DOXYGEN doxygen)
if(EK_DOXYGEN)
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E make_directory ${EK_DOCS_OUTPUT}
    COMMAND ${EK_DOXYGEN} ${CMAKE_BINARY_DIR}/Doxyfile
    COMMAND ${CMAKE_COMMAND} -E echo "API reference: ${EK_DOCS_OUTPUT}/html/index.html"
    VERBATIM)
else()
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E echo "doxygen is missing: tools/setup.sh --docs installs it; then run cmake again"
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
endif()
install(DIRECTORY ${EK_DOCS_OUTPUT}/html DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
