@echo off
rem The counterpart of the Makefile in a Windows shell: make run, make test, make probe. Each sets everything up first.
rem With PYTHON set, that interpreter is used as it is, and nothing is set up.
setlocal
cd /d "%~dp0"
set "TARGET=%~1"
if "%TARGET%"=="" set "TARGET=run"
if "%TARGET%"=="run" goto ready
if "%TARGET%"=="probe" goto ready
if "%TARGET%"=="test" goto ready
echo make: no target %TARGET%; there are run, test and probe 1>&2
exit /b 2

:ready
if defined PYTHON goto %TARGET%
set "PYTHON=.venv\Scripts\python.exe"
if exist .venv\.ready goto %TARGET%
echo setting up .venv (once)
set "FIRST=python"
where py >nul 2>nul && set "FIRST=py -3"
%FIRST% -c "import sys; sys.exit(sys.version_info < (3, 11) and 'ringfence needs Python 3.11 or later')" || exit /b 1
%FIRST% -m venv .venv || exit /b 1
%PYTHON% -m pip install --quiet --disable-pip-version-check --editable ".[dev]" || exit /b 1
rem As an installation from a wheel has it: where PYTHONDONTWRITEBYTECODE is set, each start would compile all of it.
%PYTHON% -m compileall -q src\ringfence || exit /b 1
type nul > .venv\.ready
goto %TARGET%

:run
%PYTHON% -m ringfence demo
exit /b

:probe
%PYTHON% -m ringfence probe
exit /b

:test
%PYTHON% tests\programs\windows_checks.py src
exit /b
