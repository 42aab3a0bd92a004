"""The long lists of words in the rules: modules, functions and attributes, by what they do."""

from __future__ import annotations


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


def _below(module: str, names: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in names.split())


NETWORK_MODULES = _listed("""
socket _socket ssl _ssl socketserver select selectors asyncore asynchat urllib.request urllib.error urllib.robotparser
urllib2 urllib3 http.client http.server http.cookiejar httplib httplib2 ftplib smtplib smtpd poplib imaplib nntplib
telnetlib xmlrpc
xmlrpclib webbrowser wsgiref requests requests_html requests_toolbelt grequests httpx aiohttp aiohttp_socks websocket
websockets paramiko fabric pycurl socks sockshandler stem discord discord_webhook dhooks nextcord telegram telebot
pyrogram telethon aiogram slack_sdk slackclient tweepy twilio boto3 botocore google.cloud dropbox pymongo redis psycopg2
pymysql mysql MySQLdb kafka pika paho zmq twisted tornado flask fastapi uvicorn gunicorn django bottle cherrypy
sanic starlette scapy nmap shodan impacket dns dnslib pysnmp selenium mechanize mechanicalsoup scrapy playwright
splinter pyngrok yagmail sendgrid mailjet_rest netifaces pyshark whois cloudscraper cfscrape tls_client curl_cffi
fake_useragent logging.handlers multiprocessing.connection pip._vendor.requests pip._vendor.urllib3 cgi wget gdown
pytube youtube_dl yt_dlp instaloader speedtest ping3 icmplib antigravity mailbox
""")

PROCESS_MODULES = _listed("""
pipes mailcap
subprocess _posixsubprocess pty multiprocessing _multiprocessing commands popen2 pexpect ptyprocess sh plumbum invoke
delegator
concurrent.futures.process joblib.externals posix nt _winapi psutil daemon crontab sched_win
asyncio.subprocess envoy pwn pwnlib
""")

HOST_MODULES = _listed("""
pynput keyboard mouse pyautogui pyHook pyWinhook pyperclip clipboard winreg _winreg win32api win32con win32gui
win32crypt win32process win32clipboard win32com win32service win32serviceutil win32security win32event win32file win32ts
pythoncom pywintypes wmi mss pyscreenshot PIL.ImageGrab browser_cookie3 browsercookie browserhistory elevate pyuac
pycaw pyscreeze pymem ReadWriteMemory uiautomation getmac pwd grp spwd crypt syslog termios tty fcntl msvcrt
nmcli pulsectl _tkinter sounddevice pyaudio vidstream keyring secretstorage usb serial Xlib evdev uinput
""")

NATIVE_MODULES = _listed("""
torch.utils.cpp_extension
ctypes _ctypes cffi _cffi_backend mmap pyximport pytransform pyarmor_runtime pyarmor_runtime_000000 pyarmor frida
unicorn capstone keystone llvmlite.binding comtypes numpy.ctypeslib numpy.distutils numpy.f2py distorm3
""")

IMPORT_MODULES = _listed("""
imp runpy zipimport pkgutil modulefinder _frozen_importlib _frozen_importlib_external _imp importlib.abc
importlib.machinery importlib.util importlib._bootstrap
importlib._bootstrap_external site sitecustomize usercustomize __main__ zipapp ensurepip pip setuptools
distutils venv easy_install pkg_resources pydoc test test.support lib2to3 idlelib py_compile compileall
""")

INTERPRETER_MODULES = _listed("""
code codeop pdb bdb rlcompleter pyclbr _testcapi _testinternalcapi _xxsubinterpreters _interpreters interpreters
_opcode opcode bytecode byteplay xdis uncompyle6 logging.config unittest.mock mock IPython ipdb pudb trace
_thread.interrupt_main sys.monitoring _ast_unparse asteval RestrictedPython
""")

PICKLE_MODULES = _listed("""
marshal shelve _pickle cPickle dill cloudpickle jsonpickle hickle klepto dbm gdbm pickletools
""")

PROCESS_CALLS = (
    *_below("os", """
    system popen popen2 popen3 popen4 startfile fork forkpty execl execle execlp execlpe execv execve execvp
    execvpe spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe posix_spawn posix_spawnp kill killpg
    abort _exit setuid setgid seteuid setegid setreuid setregid setsid setpgid nice wait waitpid pidfd_open
    register_at_fork unshare setns
    """),
    *_below("asyncio", "create_subprocess_exec create_subprocess_shell"),
    "concurrent.futures.ProcessPoolExecutor", "platform.popen", "joblib.Parallel", "timeit.subprocess",
    "uuid._get_command_stdout", "uuid._popen", "platform._syscmd_file", "platform._syscmd_ver", "tkinter.Tcl",
    "signal.pidfd_send_signal", "signal.pthread_kill",
)  # fmt: skip

CODE_CALLS = ("builtins.eval", "builtins.exec", "builtins.compile", "builtins.breakpoint", "builtins.execfile",
              "builtins.reload", "numexpr.evaluate", "builtins.help", "codecs.open_code", "io.open_code",
              "numpy.testing.runstring", "numpy.testing.rundocs")  # fmt: skip

PICKLE_CALLS = (
    *_below("pickle", "load loads Unpickler _Unpickler _load _loads"), "joblib.load", "pandas.read_pickle",
    "torch.load", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.UnsafeLoader", "yaml.Loader",
    "yaml.CLoader", "yaml.FullLoader", "copyreg.add_extension", "multiprocessing.reduction",
    "xml.etree.ElementInclude",
)  # fmt: skip

NETWORK_CALLS = (
    *_below("asyncio", """open_connection start_server open_unix_connection start_unix_server create_connection
    create_server create_datagram_endpoint sslproto selector_events"""),
    "socket.socket", "urllib.urlopen", "urllib.urlretrieve", "urllib.request", "urllib.error", "http.client",
    "http.server", "logging.handlers", "torch.hub", "torch.distributed", "tensorflow.keras.utils.get_file",
    "keras.utils.get_file", "nltk.download", "scipy.datasets", "sklearn.datasets.fetch_openml",
)  # fmt: skip

OS_ALLOWED = _listed("""
path environ getenv sep linesep name curdir pardir extsep altsep pathsep devnull getcwd cpu_count getpid urandom
fspath PathLike strerror get_terminal_size times sched_getaffinity error read write fstat isatty SEEK_SET SEEK_CUR
SEEK_END O_RDONLY O_WRONLY O_RDWR O_CREAT O_TRUNC O_APPEND O_EXCL R_OK W_OK F_OK X_OK fsencode fsdecode
supports_bytes_environ
listdir scandir walk fwalk mkdir makedirs remove unlink rmdir removedirs rename renames replace open stat lstat
chmod chown link symlink truncate utime mkfifo access readlink close terminal_size stat_result DirEntry statvfs
""")

SYS_ALLOWED = _listed("""
argv stdin stdout stderr __stdin__ __stdout__ __stderr__ exit maxsize maxint setrecursionlimit getrecursionlimit version
version_info platform byteorder float_info int_info hash_info thread_info getsizeof path intern exc_info getrefcount
maxunicode flags implementation getdefaultencoding getfilesystemencoding set_int_max_str_digits get_int_max_str_digits
getswitchinterval setswitchinterval hexversion float_repr_style stdlib_module_names builtin_module_names prefix
base_prefix warnoptions dont_write_bytecode exception copyright api_version displayhook ps1 setcheckinterval
pypy_version_info _is_gil_enabled
""")

INSPECT_ALLOWED = _listed("""
signature Signature Parameter BoundArguments isclass isfunction ismethod ismodule isbuiltin isgenerator
isgeneratorfunction iscoroutine iscoroutinefunction isawaitable isabstract isroutine getdoc getsource cleandoc
getfullargspec getmembers getmro isasyncgenfunction get_annotations _empty unwrap getsourcefile getfile
getsourcelines ismethoddescriptor isdatadescriptor
""")

BUILTINS_ALLOWED = _listed("""
abs all any ascii bin bool bytearray bytes callable chr classmethod complex dict dir divmod enumerate filter float
format frozenset hash hex id input int isinstance issubclass iter len list map max min next object oct ord pow print
property range repr reversed round set slice sorted staticmethod str sum super tuple type zip Exception ValueError
TypeError KeyError IndexError OverflowError ZeroDivisionError NotImplementedError StopIteration RuntimeError
""")

WALK_ATTRIBUTES = _listed("""
__subclasses__ __globals__ __builtins__ __import__ __loader__ __spec__ __closure__ __getattribute__
func_globals func_code gi_frame gi_code cr_frame cr_code ag_frame ag_code
tb_frame f_globals f_locals f_builtins f_back f_code f_trace co_code co_consts load_module
exec_module find_spec module_from_spec spec_from_loader get_importer _Printer__filenames
cell_contents _getframe _current_frames _ctypes
""")

WALK_STRINGS = frozenset(_listed("""
__subclasses__ __globals__ __builtins__ __import__ __loader__ __getattribute__ __bases__ __base__ __closure__
gi_frame tb_frame f_globals f_locals f_builtins f_back func_globals
"""))

# Modules that others import for their own use: reached through those they are the same.
THROUGH = frozenset(_listed("""
os sys subprocess builtins importlib socket shutil ctypes posix imp pickle marshal multiprocessing pty runpy inspect gc
ssl pkgutil zipimport mmap pathlib tempfile urllib
"""))

# Attributes that lead further, of modules with a short allowed list, when reached through any object.
REACHED = frozenset(_below("sys", "modules _getframe _current_frames meta_path path_hooks settrace setprofile"))

# What an unbound name means: in a fragment of a program, or where names come from a star import.
UNBOUND = {name: name for name in (*THROUGH, *_listed("""
requests httpx aiohttp paramiko pyperclip pynput smtplib ftplib telnetlib winreg pyautogui base64 codecs glob io
asyncio pexpect psutil discord webbrowser http binascii zlib dill shelve
"""))} | {"Path": "pathlib.Path", "Popen": "subprocess.Popen", "urlopen": "urllib.request.urlopen", "np": "numpy",
          "pd": "pandas", "system": "os.system", "popen": "os.popen", "environ": "os.environ"}  # fmt: skip

# Libraries that compute, draw or store, and open no connection by themselves.
PURE_LIBRARIES = frozenset(_listed("""
numpy pandas scipy sklearn matplotlib seaborn sympy networkx numba statsmodels polars pyarrow talib ta sortedcontainers
attr attrs typing_extensions tqdm joblib xgboost lightgbm torch tensorflow keras jax bottleneck numexpr cvxpy pulp
dateutil pytz finlab vectorbt backtrader mplfinance arch hypothesis pytest mpmath gmpy2 cython more_itertools toolz
"""))

# Parts of addresses that things are sent to, or fetched from, without anybody's name.
DROP_ADDRESSES = _listed("""
discord.com/api/webhooks discordapp.com/api/webhooks api.telegram.org/bot webhook.site pastebin.com/raw transfer.sh
ngrok.io ngrok-free.app .onion/ hooks.slack.com requestbin burpcollaborator oast. anonfiles.com gofile.io ipinfo.io
api.ipify.org ifconfig.me
""")

# Where secrets and the system lie.
SECRET_PATHS = _listed("""
/etc/ /root /home/ /proc/ /var/log /var/lib /var/run /run/ /boot/ /sys/ /dev/mem /dev/sd /usr/bin /bin/ ~/. ~root /flag
""")

# Names that look-alike letters are used for.
WATCHED_NAMES = frozenset(_listed("""
eval exec compile open os sys subprocess socket system popen getattr setattr globals locals vars import builtins
importlib ctypes pickle marshal input print requests urllib exit type object __import__ __builtins__ __class__
__subclasses__ __globals__ True False None self shutil
"""))
