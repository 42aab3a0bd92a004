"""What takes a path: functions and methods, as data, and what they do with it."""

from __future__ import annotations

from collections.abc import Mapping

READ, WRITE, LIST, CHANGE = "reads", "writes", "lists", "changes"
"""LIST and CHANGE must be known to stay inside; for the others an unknown path is a warning."""

Sink = tuple[str, tuple[int, ...], tuple[str, ...]]
"""(what it does, which arguments are paths, by which names they may be given)."""


def _table(action: str, names: str, places: tuple[int, ...] = (0,), keywords: tuple[str, ...] = ()) -> dict[str, Sink]:
    return dict.fromkeys(names.split(), (action, places, keywords))


FUNCTIONS: Mapping[str, Sink] = {
    **_table(READ, "builtins.open io.FileIO codecs.open tokenize.open gzip.open bz2.open lzma.open gzip.GzipFile "
                   "bz2.BZ2File lzma.LZMAFile", keywords=("file", "filename")),
    **_table(READ, "zipfile.ZipFile tarfile.open tarfile.TarFile sqlite3.connect wave.open aifc.open",
             keywords=("file", "name", "database", "f")),
    **_table(READ, "linecache.getline linecache.getlines linecache.updatecache fileinput.input fileinput.FileInput "
                   "configparser.read mimetypes.read_mime_types netrc.netrc plistlib.readPlist", keywords=("files",)),
    **_table(READ, "numpy.load numpy.loadtxt numpy.genfromtxt numpy.fromfile numpy.memmap numpy.lib.format.open_memmap",
             keywords=("file", "fname", "filename")),
    **_table(WRITE, "numpy.save numpy.savez numpy.savez_compressed numpy.savetxt", keywords=("file", "fname")),
    **_table(READ, "pandas.read_csv pandas.read_json pandas.read_table pandas.read_excel pandas.read_parquet "
                   "pandas.read_html pandas.read_xml pandas.read_feather pandas.read_orc pandas.read_fwf "
                   "pandas.read_hdf pandas.read_stata pandas.read_sas pandas.read_spss polars.read_csv "
                   "polars.read_parquet "
                   "polars.scan_csv pandas.ExcelFile pandas.HDFStore",
             keywords=("filepath_or_buffer", "path_or_buf", "io", "path", "path_or_buffer", "source")),
    **_table(WRITE, "logging.FileHandler pandas.ExcelWriter", keywords=("filename",)),
    **_table(WRITE, "logging.basicConfig", places=(), keywords=("filename",)),
    **_table(READ, "glob.glob glob.iglob glob.glob1", keywords=("pathname", "root_dir")),
    **_table(LIST, "os.listdir os.scandir os.walk os.fwalk os.readlink os.statvfs", keywords=("path", "top")),
    **_table(WRITE, "os.mkdir os.makedirs os.mkfifo", keywords=("path", "name")),
    **_table(CHANGE, "os.remove os.unlink os.rmdir os.removedirs os.chmod os.chown os.truncate os.utime os.open",
             keywords=("path",)),
    **_table(CHANGE, "os.rename os.renames os.replace os.link os.symlink shutil.copy shutil.copy2 shutil.copyfile "
                     "shutil.copytree shutil.move shutil.copymode shutil.copystat", places=(0, 1),
             keywords=("src", "dst")),
    **_table(CHANGE, "shutil.rmtree shutil.chown shutil.disk_usage", keywords=("path",)),
    **_table(CHANGE, "shutil.unpack_archive shutil.make_archive", places=(0, 1, 2),
             keywords=("filename", "base_name", "root_dir", "extract_dir", "base_dir")),
    **_table(WRITE, "tempfile.NamedTemporaryFile tempfile.TemporaryFile tempfile.TemporaryDirectory tempfile.mkdtemp "
                    "tempfile.mkstemp tempfile.SpooledTemporaryFile", places=(), keywords=("dir",)),
    **_table(READ, "io.TextIOWrapper", places=()),
    **_table(READ, "PIL.Image.open cv2.imread imageio.imread matplotlib.pyplot.imread soundfile.read librosa.load "
                   "json.tool.main scipy.io.loadmat scipy.io.wavfile.read h5py.File joblib.dump torch.save"),
    **_table(READ, "xml.etree.ElementTree.parse xml.etree.ElementTree.iterparse xml.dom.minidom.parse xml.sax.parse "
                   "xml.dom.pulldom.parse filecmp.cmp filecmp.dircmp readline.read_history_file mailbox.mbox",
             keywords=("source", "file", "filename")),
    **_table(READ, "os.stat os.lstat os.access", keywords=("path",)),
    **_table(WRITE, "cv2.imwrite imageio.imwrite matplotlib.pyplot.savefig scipy.io.savemat matplotlib.pyplot.imsave"),
}  # fmt: skip

PATH_METHODS: Mapping[str, str] = {
    **dict.fromkeys(("open", "read_text", "read_bytes", "stat", "lstat", "exists", "is_file", "is_dir"), READ),
    **dict.fromkeys(("write_text", "write_bytes", "mkdir", "touch"), WRITE),
    **dict.fromkeys(("iterdir", "glob", "rglob", "walk", "readlink", "owner", "group"), LIST),
    **dict.fromkeys(("unlink", "rmdir", "rename", "replace", "chmod", "lchmod", "symlink_to", "hardlink_to", "link_to"),
                    CHANGE),
}  # fmt: skip

# Methods of unknown objects: only a path or an address written in the code counts against them.
METHODS = frozenset(_table(READ, """
to_csv to_json to_pickle to_parquet to_excel to_hdf to_feather to_html to_stata to_latex to_markdown savefig save savez
savetxt save_model load_model load_weights save_weights dump_model tofile imread imwrite imsave read_csv read_json
read_parquet read_excel read_html read_pickle read_table read_xml read_text read_bytes write_text write_bytes loadtxt
genfromtxt open file extractall write_parquet write_csv scan_csv from_file fromfile memmap to_sql read_sql connect
urlopen
get_file download read parse
"""))
