"""What `test_scipy` runs in processes of its own: ``python -m tests.arrays.scipy_programs scipy|sklearn``.

SciPy reads ``SCIPY_ARRAY_API`` when it is imported.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import nvfp as nf

Calls = dict[str, Callable[..., Any]]


def scipy_calls() -> Calls:
    import scipy.cluster.hierarchy
    import scipy.cluster.vq
    import scipy.differentiate
    import scipy.fft
    import scipy.integrate
    import scipy.ndimage
    import scipy.signal
    from scipy import special, stats
    from scipy.spatial.transform import Rotation

    return {
        "logsumexp": lambda xp, a, b, c: special.logsumexp(a, axis=1),
        "softmax": lambda xp, a, b, c: special.softmax(a, axis=1),
        "expit": lambda xp, a, b, c: special.expit(b),
        "erf": lambda xp, a, b, c: special.erf(b),
        "gammaln": lambda xp, a, b, c: special.gammaln(c),
        "xlogy": lambda xp, a, b, c: special.xlogy(c, c),
        "zscore": lambda xp, a, b, c: stats.zscore(a),
        "skew": lambda xp, a, b, c: stats.skew(a),
        "kurtosis": lambda xp, a, b, c: stats.kurtosis(a),
        "pearsonr": lambda xp, a, b, c: stats.pearsonr(b, c).statistic,
        "ttest_ind": lambda xp, a, b, c: stats.ttest_ind(b, c).pvalue,
        "gmean": lambda xp, a, b, c: stats.gmean(c),
        "entropy": lambda xp, a, b, c: stats.entropy(c),
        "fft": lambda xp, a, b, c: scipy.fft.fft(b),
        "dct": lambda xp, a, b, c: scipy.fft.dct(b),
        "whiten": lambda xp, a, b, c: scipy.cluster.vq.whiten(a),
        "linkage": lambda xp, a, b, c: scipy.cluster.hierarchy.linkage(a),
        "fftconvolve": lambda xp, a, b, c: scipy.signal.fftconvolve(b, c),
        "detrend": lambda xp, a, b, c: scipy.signal.detrend(b),
        "trapezoid": lambda xp, a, b, c: scipy.integrate.trapezoid(b),
        "cumulative_trapezoid": lambda xp, a, b, c: scipy.integrate.cumulative_trapezoid(b),
        "gaussian_filter": lambda xp, a, b, c: scipy.ndimage.gaussian_filter(a, 1.0),
        "rotation": lambda xp, a, b, c: Rotation.from_quat(a).as_matrix(),
        "derivative": lambda xp, a, b, c: scipy.differentiate.derivative(xp.exp, b).df,
    }


def sklearn_calls() -> Calls:
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.metrics import accuracy_score, mean_squared_error, pairwise_distances, r2_score
    from sklearn.mixture import GaussianMixture
    from sklearn.model_selection import train_test_split
    from sklearn.naive_bayes import GaussianNB
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    return {
        "Ridge": lambda a, y, r: Ridge(solver="svd").fit(a, r).predict(a),
        "PCA": lambda a, y, r: PCA(2, svd_solver="full").fit_transform(a),
        "StandardScaler": lambda a, y, r: StandardScaler().fit_transform(a),
        "MinMaxScaler": lambda a, y, r: MinMaxScaler().fit_transform(a),
        "LinearDiscriminantAnalysis": lambda a, y, r: LinearDiscriminantAnalysis().fit(a, y).predict(a),
        "LogisticRegression": lambda a, y, r: LogisticRegression(solver="lbfgs").fit(a, y).predict_proba(a),
        "GaussianNB": lambda a, y, r: GaussianNB().fit(a, y).predict_proba(a),
        "GaussianMixture": lambda a, y, r: (
            GaussianMixture(2, random_state=0, init_params="random").fit(a).score_samples(a)
        ),
        "accuracy_score": lambda a, y, r: accuracy_score(y, y),
        "r2_score": lambda a, y, r: r2_score(r, r * 0.5),
        "mean_squared_error": lambda a, y, r: mean_squared_error(r, r * 0.5),
        "pairwise_distances": lambda a, y, r: pairwise_distances(a, a),
        "train_test_split": lambda a, y, r: train_test_split(a, y, random_state=0)[0],
    }


def run_scipy() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(20, 4)), rng.normal(size=20), np.abs(rng.normal(size=20)) + 0.1
    calls = scipy_calls()
    for name, call in calls.items():
        expected = call(np, *values)
        for dtype, rtol in (("float64", 1e-12), ("float32", 1e-4)):
            got = call(nf, *(nf.asarray(v, dtype=dtype) for v in values))
            assert type(got) is nf.Array, (name, type(got))
            np.testing.assert_allclose(np.asarray(got), expected, rtol=rtol, atol=rtol, err_msg=name)
    print(len(calls), "functions")


def run_sklearn() -> None:
    import sklearn

    rng = np.random.default_rng(0)
    table = np.concatenate([rng.normal(size=(30, 4)), rng.normal(size=(30, 4)) + 2]).astype(np.float32)
    labels, target = np.repeat([0, 1], 30), (table @ np.arange(4) + 0.5).astype(np.float32)
    calls = sklearn_calls()
    for name, call in calls.items():
        with sklearn.config_context(array_api_dispatch=False):
            expected = call(table, labels, target)
        for dispatch in (True, False):
            with sklearn.config_context(array_api_dispatch=dispatch):
                got = call(*(nf.asarray(v) for v in (table, labels, target)))
            assert not dispatch or type(got) in (nf.Array, float), (name, type(got))
            np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-3, atol=1e-4, err_msg=name)
    print(len(calls), "functions")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with nf.use_device("cpu"):
        {"scipy": run_scipy, "sklearn": run_sklearn}[sys.argv[1]]()
